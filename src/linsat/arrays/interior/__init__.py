"""The interior-point method in numpy, an instance at a time: large sparse programs, and what others have not solved."""
