"""The torch door: scores that are tensors, gradients by autograd, operators for graphs, the layer."""
