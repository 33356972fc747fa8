"""C++ names of kernels, by LLVM's demangler (package ``pydemumble`` of the extra ``inspect``).

Tried against GNU c++filt on the 7,700 names of libstdc++ and of our own extensions: the pure Python
``itanium_demangler`` reads a quarter of them alike and a sixth not at all (no expressions in
template arguments); ``pydemumble`` reads three quarters alike, the rest in LLVM's spelling.
"""

from __future__ import annotations

# The demangler recurses on the C stack; names of real kernels stay well below this.
_LONGEST = 16 << 10


def demangle(name: str) -> str | None:
    """`name` in C++ spelling; itself where it is not mangled; None where that cannot be told."""
    if not name.startswith("_Z"):
        return name
    try:
        import pydemumble
    except ImportError:
        return None
    if len(name) > _LONGEST or not name.isascii():
        return None
    return str(pydemumble.demangle(name)) or None
