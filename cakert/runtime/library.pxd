from cuda.bindings cimport cydriver as cu

cdef class Library:
    cdef cu.CUlibrary handle
    cdef readonly object source      # path or None
    cdef readonly tuple names
    cdef readonly str detail         # what the caller said of the image, for error messages
    cdef object image                # the bytes, kept alive while the driver may use them
    cdef dict kernels                # name -> weak reference: a kernel holds its library

    cdef str load_detail(self, int device)

cdef class Kernel:
    cdef cu.CUkernel handle
    cdef readonly Library library    # keeps the image loaded
    cdef readonly str name
    cdef tuple layout                # ((offset, size), ...) of the parameters, None until asked
    cdef dict loaded                 # device -> dynamic shared memory that was opted in, bytes
    cdef object __weakref__

    cdef int ensure_loaded(self, int device, int shared_bytes, bint large_cluster) except -1
    cdef int attribute(self, int device, cu.CUfunction_attribute which) except? -1
    cdef tuple layout_on(self, int device)
    cdef object required_cluster(self, int device)
