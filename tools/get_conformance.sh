#!/usr/bin/env bash
# Fetches the wheels whose kernels tests/sim/conformance runs on the simulator, and unpacks the parts
# that it reads: kernel sources of flashinfer-python (data, never imported), and Triton's compiler.
#
#   tools/get_conformance.sh [DIR]
#
# DIR defaults to $CAKERT_CONFORMANCE, then to ~/.cache/cakert/conformance; tests look in the same two
# places. $PYTHON (default: python3) is the interpreter that downloads, and the one whose version the
# Triton wheel is for. A second run does nothing; pip's own settings (index, proxy) apply.
set -euo pipefail

target=${1:-${CAKERT_CONFORMANCE:-$HOME/.cache/cakert/conformance}}
python=${PYTHON:-python3}
mkdir -p "$target"
scratch=$(mktemp -d "$target/.download.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')

# unpack REQUIREMENT FOLDER PATTERN...: the files of the wheel that match, '!' in front leaves out.
# The folder appears at once, complete, by a rename: an interrupted run leaves nothing behind.
unpack() {
  local requirement=$1 folder=$2
  shift 2
  if [[ -d $target/$folder ]]; then
    echo "$requirement: already in $target/$folder"
    return
  fi
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$scratch/$folder.wheel" "$requirement"
  "$python" - "$scratch/$folder.wheel" "$scratch/$folder" "$@" <<'PYTHON'
import fnmatch
import pathlib
import sys
import zipfile

source, target, *patterns = sys.argv[1:]
wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
(wheel,) = pathlib.Path(source).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    count = 0
    for entry in archive.infolist():
        name = entry.filename
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in unwanted):
            continue
        path = pathlib.Path(archive.extract(entry, target))
        mode = entry.external_attr >> 16 & 0o777
        if mode:
            path.chmod(mode)  # zipfile drops the executable bits (ptxas)
        count += 1
    if not count:
        sys.exit(f"{wheel.name} has none of {wanted}")
    print(f"{wheel.name}: {count} files")
PYTHON
  mv "$scratch/$folder" "$target/$folder"
  rm -rf "$scratch/$folder.wheel"
}

unpack flashinfer-python==0.7.2.post1 flashinfer-0.7.2.post1 \
  'flashinfer/data/csrc/cake_vsa/*.cu' 'flashinfer/data/csrc/cake_vsa_sm90/*' \
  '*.dist-info/METADATA' '*.dist-info/licenses/*' '!*_binding.cu'
unpack triton==3.6.0 "triton-3.6.0-$tag" \
  'triton/*' '*.dist-info/*' '!triton/_C/libproton*' '!triton/FileCheck' '!triton/profiler/*' \
  '!triton/instrumentation/*' '!triton/backends/nvidia/lib/cupti/*' '!triton/backends/*/include/*' \
  '!triton/backends/nvidia/bin/cuobjdump' '!triton/backends/nvidia/bin/nvdisasm'
echo "conformance kernels: $target"
