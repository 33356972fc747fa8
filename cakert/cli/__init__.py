"""The `cakert` command: what a person runs to look at kernels, at a mask, or at this machine.

A mistake of the user gives one line on standard error and no traceback: exit status 2 for a wrong
command line, 1 for what went wrong after it.
"""
