# Python arguments -> the bytes of a kernel's parameters.

# Whether `value` is packed by value (scalar, bytes, None); tensors are passed by address.
cdef bint is_scalar(object value) except -1
# Writes the `size` bytes of parameter `index` at `out`; the size must be the value's own.
cdef int pack_scalar(object value, char* out, size_t size, Py_ssize_t index) except -1
# TypeError unless `given` arguments match the `expected` parameters of kernel `name`.
cdef int check_count(str name, Py_ssize_t expected, Py_ssize_t given) except -1
# Bytes of the whole parameter block of a layout ((offset, size), ...).
cdef Py_ssize_t block_bytes(tuple layout) except -1
