"""Gradients of a projection: the only place that knows autograd."""
