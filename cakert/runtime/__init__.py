"""The CUDA driver from Python: tensors in, kernels launched, memory owned, time measured.

Importing any module of this package touches no driver; the first call that needs one opens it.
Nothing here knows of attention.
"""
