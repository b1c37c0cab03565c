"""Batches on their way to the device: taken from their loader ahead of the model that wants them.

api              the public function, and what it does on which device
lookahead        a thread that takes items from an iterator ahead of their user; knows no device
cuda             copies to a CUDA device, staged in pinned memory, on a stream of their own
tree             a batch with its tensors replaced, whatever containers they are in
container_copy   copies of those containers
thread_context   what torch keeps for each thread, carried over to another one
gil_switching    shorter turns at the interpreter while such a thread works
"""
