"""C++ names of kernels, by the package ``demangle`` of the extra ``inspect`` (from Python 3.11 on).

Names come from files that nobody vouches for, so the demangler needs bounds of its own: a mangled
name of 250 bytes can stand for 500 MB of text (each level of a template names the one before
twice), which LLVM's demangler (``pydemumble``) writes out; this one gives up at 64 KiB. It reads
the 7,687 names of libstdc++ and of our own extensions exactly as GNU c++filt does; of those the
pure Python ``itanium_demangler`` does not read a sixth.
"""

from __future__ import annotations


def demangle(name: str) -> str | None:
    """`name` in C++ spelling; itself where it is not mangled; None where that cannot be told."""
    if not name.startswith("_Z"):
        return name
    try:
        from demangle import demangle as read_name
    except ImportError:
        return None
    text = read_name(name, language="itanium", style="gnu")
    # What it cannot read comes back unchanged.
    return None if text == name else text
