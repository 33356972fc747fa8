"""What `cakert doctor` can find: for each case how bad it is, why it matters, and its mend.

Data only; docs/doctor.md has the same table, and a test holds it to this one. A mend may name
values that the check fills in, in braces.
"""

from __future__ import annotations

from typing import NamedTuple

from cakert.errors import MINIMUM_DRIVER, STATUS_TABLE

LEVELS = ("ok", "note", "warning", "trouble")
"""In rising order. Only trouble makes the exit status 1."""


class Case(NamedTuple):
    """One case of a check; `mend` is empty where nothing is to be done."""

    check: str
    level: str
    why: str
    mend: str = ""


_NO_GPU = "without a driver no kernel runs on a GPU; the simulator, `inspect` and `verify` work"
_BROKEN = "a driver is installed but cannot be used, so no kernel runs on a GPU"
_REINSTALL = "pip install --force-reinstall --no-deps cakert"

CASES: dict[str, Case] = {
    # --- python ---
    "python-ok": Case("python", "ok", ""),
    "python-other": Case(
        "python",
        "warning",
        "the package is built and tested for CPython 3.10 to 3.14",
        "make an environment of one of those (python3.12 -m venv ...), and install cakert there",
    ),
    "platform-other": Case(
        "python",
        "trouble",
        "there are wheels and tests for Linux on x86_64 and aarch64 only",
        "use Linux (on Windows: WSL 2)",
    ),
    "python-without-gil": Case(
        "python",
        "note",
        "the extension modules are not declared safe without it: importing them turns the GIL on",
    ),
    # --- extensions ---
    "extensions-ok": Case("extensions", "ok", ""),
    "extensions-missing": Case(
        "extensions",
        "trouble",
        "this is a source tree that was not built, and it hides an installed package",
        "start from another folder, or build it: pip install -e .",
    ),
    "extensions-other": Case(
        "extensions",
        "trouble",
        "extension modules fit one interpreter only",
        f"install cakert with the Python that runs it: {_REINSTALL}",
    ),
    "extensions-need": Case(
        "extensions",
        "trouble",
        "they import a package that is not there, or that something else hides",
        "mend what the checks `packages` and `names` find",
    ),
    "extensions-broken": Case(
        "extensions",
        "trouble",
        "without them there are no launches and no simulator",
        f"{_REINSTALL}; in a source tree: pip install -e .",
    ),
    # --- packages ---
    "packages-ok": Case("packages", "ok", ""),
    "package-missing": Case(
        "packages", "trouble", "the package requires it", "pip install {package}"
    ),
    "package-broken": Case(
        "packages",
        "trouble",
        "it is installed, but cannot be imported: its files are damaged, or another module of that "
        "name comes first on the path",
        "pip install --force-reinstall {package}=={version}; or start from elsewhere",
    ),
    "bindings-other": Case(
        "packages",
        "trouble",
        "the extension modules bind to functions of these releases",
        "pip install 'cuda-bindings>=12.9,<14'",
    ),
    # --- names ---
    "names-ok": Case("names", "ok", ""),
    "cuda-shadowed": Case(
        "names",
        "trouble",
        "it hides the package cuda.bindings, so nothing that calls the driver can be imported",
        "rename {path}, uninstall what put it there, or start from another folder",
    ),
    "cakert-twice": Case(
        "names",
        "note",
        "the first on the path is taken: is it the one that you mean?",
        "start from another folder, or take {path} out of the path",
    ),
    # --- extras ---
    "extras-ok": Case("extras", "ok", ""),
    "extra-inspect": Case(
        "extras",
        "note",
        "`cakert inspect` cannot read compressed fatbins, or shows mangled C++ names",
        "pip install 'cakert[inspect]'",
    ),
    "extra-nvdisasm": Case(
        "extras",
        "note",
        "`cakert inspect --sass` shows machine code with it; nothing else needs it",
        "pip install 'cakert[sass]'",
    ),
    "extra-explain": Case(
        "extras",
        "note",
        "`cakert explain --out` draws pictures with it; nothing else needs it",
        "pip install 'cakert[explain]'",
    ),
    "extra-completion": Case(
        "extras",
        "note",
        "`cakert completion` prints scripts with it; nothing else needs it",
        "pip install 'cakert[completion]'",
    ),
    # --- store ---
    "store-ok": Case("store", "ok", ""),
    "store-damaged": Case(
        "store",
        "trouble",
        "a cubin that is not the one that was shipped is refused",
        f"`cakert verify` lists everything; {_REINSTALL}",
    ),
    "store-unread": Case(
        "store",
        "warning",
        "nobody looked at the cubins: what reads them cannot be imported",
        "mend what the checks above name",
    ),
    # --- frameworks ---
    "frameworks-ok": Case("frameworks", "ok", ""),
    "torch-cpu": Case(
        "frameworks",
        "note",
        "its tensors stay on the CPU: they serve the simulator, but no GPU",
        "for tensors on a GPU install a CUDA build (pytorch.org gives the command)",
    ),
    "torch-old": Case(
        "frameworks",
        "note",
        "from 2.10 on it lends tensors through DLPack's C exchange API; before, a launch costs "
        "microseconds more",
        "pip install 'torch>=2.10'",
    ),
    "jax-cpu": Case(
        "frameworks",
        "note",
        "without a CUDA plugin its arrays stay on the CPU",
        "for arrays on a GPU: pip install 'jax[cuda13]'",
    ),
    "cupy-several": Case(
        "frameworks",
        "warning",
        "they overwrite each other's files, and CuPy then fails in odd ways",
        "pip uninstall all of them, and install the one of your CUDA version again",
    ),
    # --- variables ---
    "variables-ok": Case("variables", "ok", ""),
    "variable-unknown": Case(
        "variables", "warning", "nothing reads it", "did you mean {meant}? Else unset it"
    ),
    "module-loading": Case(
        "variables",
        "warning",
        "the driver knows LAZY, EAGER and DEFAULT, and takes its default for anything else",
        "unset CUDA_MODULE_LOADING",
    ),
    "force-ptx-jit": Case(
        "variables",
        "warning",
        "the driver then compiles PTX and takes no machine code: a cubin has no PTX in it",
        "unset CUDA_FORCE_PTX_JIT",
    ),
    "launch-blocking": Case(
        "variables",
        "note",
        "every launch waits for its end: good to find a fault, bad for speed",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    # --- fork ---
    "fork-ok": Case("fork", "ok", ""),
    "fork-default": Case(
        "fork",
        "note",
        "children of a process that has used CUDA cannot use it",
        'before using both: multiprocessing.set_start_method("spawn")',
    ),
    # --- libcuda ---
    "libcuda-ok": Case("libcuda", "ok", ""),
    "libcuda-missing": Case(
        "libcuda",
        "note",
        _NO_GPU,
        f"for a GPU: install NVIDIA driver {MINIMUM_DRIVER} or newer",
    ),
    "libcuda-missing-gpu": Case(
        "libcuda",
        "warning",
        f"this machine has an NVIDIA GPU, but {_NO_GPU}",
        f"install NVIDIA driver {MINIMUM_DRIVER} or newer; in a container: the check `container`",
    ),
    "libcuda-broken": Case(
        "libcuda",
        "trouble",
        _BROKEN,
        "install the driver's libraries again (of this architecture: {machine})",
    ),
    "libcuda-stub": Case(
        "libcuda",
        "trouble",
        "that is the toolkit's stub, made for linking: each of its functions fails",
        "take its folder out of LD_LIBRARY_PATH",
    ),
    "libcuda-stub-near": Case(
        "libcuda",
        "warning",
        "a program that finds the toolkit's stub first does not work",
        "take {path} out of LD_LIBRARY_PATH",
    ),
    "libcuda-several": Case(
        "libcuda",
        "warning",
        "the first one is taken, and it must fit the kernel module",
        "keep one in LD_LIBRARY_PATH: the driver's own needs none",
    ),
    "wsl-missing": Case(
        "libcuda",
        "warning",
        "in WSL the driver is that of Windows, and its libcuda stands in /usr/lib/wsl/lib",
        f"install NVIDIA driver {MINIMUM_DRIVER} or newer in Windows (none in Linux), then "
        "`wsl --update`; export LD_LIBRARY_PATH=/usr/lib/wsl/lib",
    ),
    "wsl-shadowed": Case(
        "libcuda",
        "warning",
        "in WSL the driver is that of Windows; a Linux driver's libcuda does not work there",
        "remove the Linux driver's packages; export LD_LIBRARY_PATH=/usr/lib/wsl/lib",
    ),
    # --- container ---
    "container-ok": Case("container", "ok", ""),
    "container-no-gpu": Case(
        "container",
        "note",
        "a container sees the GPUs of its host only where it was started so",
        "for a GPU: docker run --gpus all (podman: --device nvidia.com/gpu=all)",
    ),
    "container-void": Case(
        "container",
        "warning",
        "the container runtime hands no GPU in",
        "start the container with NVIDIA_VISIBLE_DEVICES=all, or --gpus all",
    ),
    "container-capabilities": Case(
        "container",
        "trouble",
        "without `compute` the container runtime does not bring libcuda in",
        "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    # --- kernel-module ---
    "module-ok": Case("kernel-module", "ok", ""),
    "module-missing": Case(
        "kernel-module",
        "trouble",
        "libcuda talks to the kernel module nvidia, which is not loaded",
        "sudo modprobe nvidia; where that fails after a kernel update, install the driver again",
    ),
    "module-mismatch": Case(
        "kernel-module",
        "trouble",
        "libcuda and the kernel module must be of one driver (else status 803)",
        STATUS_TABLE[803][2],
    ),
    "module-compat": Case(
        "kernel-module",
        "note",
        "a compatibility package: it works on data-centre GPUs with a supported kernel module only",
    ),
    # --- device-files ---
    "device-files-ok": Case("device-files", "ok", ""),
    "device-files-missing": Case(
        "device-files",
        "trouble",
        "the kernel module is loaded, but there is no file to reach it by",
        "in a container: start it with --gpus all; else: sudo nvidia-modprobe -u -c 0",
    ),
    "device-files-denied": Case(
        "device-files",
        "trouble",
        "the driver opens them for reading and writing",
        "become a member of the group that owns them (often `video`), or ask the administrator",
    ),
    "uvm-missing": Case(
        "device-files",
        "trouble",
        "CUDA needs the module nvidia_uvm too (without it status 999)",
        "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c 0",
    ),
    # --- driver ---
    "driver-ok": Case("driver", "ok", ""),
    "driver-none": Case("driver", "ok", ""),
    "driver-old": Case(
        "driver",
        "trouble",
        "it does not load cubins of a newer major release of the toolkit",
        f"install NVIDIA driver {MINIMUM_DRIVER} or newer; data-centre GPUs may take the package "
        "cuda-compat-13-0 instead",
    ),
    "driver-forked": Case(
        "driver",
        "trouble",
        "a CUDA context does not survive a fork",
        'start processes by spawn: multiprocessing.set_start_method("spawn")',
    ),
    "driver-not-ready": Case("driver", "trouble", *STATUS_TABLE[802][1:]),
    "driver-mismatch": Case("driver", "trouble", *STATUS_TABLE[803][1:]),
    "driver-compat": Case("driver", "trouble", *STATUS_TABLE[804][1:]),
    "driver-failed": Case("driver", "trouble", _BROKEN, "{hint}"),
    # --- visible-devices ---
    "visible-ok": Case("visible-devices", "ok", ""),
    "visible-none": Case(
        "visible-devices",
        "note",
        "it hides every GPU from this process",
        "for a GPU: unset CUDA_VISIBLE_DEVICES",
    ),
    "visible-garbage": Case(
        "visible-devices",
        "warning",
        "the driver stops at the first entry that it does not understand",
        "give numbers (0,1), or names that begin with GPU- or MIG-, separated by commas",
    ),
    "visible-beyond": Case(
        "visible-devices",
        "warning",
        "the driver stops at the first number that there is no GPU for",
        "give numbers below {count}, or unset CUDA_VISIBLE_DEVICES",
    ),
    # --- devices ---
    "devices-ok": Case("devices", "ok", ""),
    "devices-none": Case("devices", "note", ""),
    "devices-unseen": Case(
        "devices",
        "trouble",
        "the kernel module has GPUs that the driver does not show to this process",
        "see `nvidia-smi` and the kernel log (dmesg | grep NVRM); check CUDA_VISIBLE_DEVICES",
    ),
    "device-unsupported": Case(
        "devices",
        "note",
        "the shipped cubins are for compute capability {supported} only; cubins of your own run",
        "attention needs another GPU, or the simulator (cakert demo --device sim:sm_90a)",
    ),
    # --- compute-mode ---
    "compute-mode-ok": Case("compute-mode", "ok", ""),
    "compute-mode-prohibited": Case(
        "compute-mode",
        "trouble",
        "no process may use this GPU",
        "sudo nvidia-smi -i {ordinal} -c DEFAULT",
    ),
    "compute-mode-exclusive": Case(
        "compute-mode",
        "note",
        "one process at a time: a second one gets status 46",
        "where several shall share it: sudo nvidia-smi -i {ordinal} -c DEFAULT",
    ),
    # --- mig ---
    "mig-ok": Case("mig", "ok", ""),
    "mig-slice": Case(
        "mig",
        "note",
        "a slice has fewer multiprocessors and less memory; a process sees one slice only",
    ),
    # --- memory ---
    "memory-ok": Case("memory", "ok", ""),
    "memory-low": Case(
        "memory",
        "warning",
        "plans and tensors need room; status 2 is what comes without",
        "`nvidia-smi` shows who holds it; end those processes, or take another GPU",
    ),
    "context-failed": Case(
        "memory", "trouble", "no context could be made, so nothing runs there", "{hint}"
    ),
}  # fmt: skip
