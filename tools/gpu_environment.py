"""What a measurement or a verification was made on, for the records of the other tools."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from typing import Any


def environment() -> dict[str, Any]:
    """GPU, driver, package and a hash over the cubins that device 0 uses."""
    import cakert
    from cakert.cubins import store
    from cakert.runtime import driver

    capability = driver.device_capability(0)
    cubins = store().fitting(capability)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": driver.device_name(0),
        "capability": f"{capability[0]}.{capability[1]}",
        "driver": driver_release(),
        "driver_cuda": driver.version_text(driver.driver_version()),
        "cakert": cakert.__version__,
        "cubin_targets": sorted({entry.target for entry in cubins}),
        "cubins": len(cubins),
        "cubins_sha256": hashlib.sha256(
            "".join(sorted(entry.sha256 for entry in cubins)).encode()
        ).hexdigest(),
    }


def driver_release() -> str:
    """Such as 580.159.04; "unknown" without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(query, text=True, capture_output=True, check=False)
    return done.stdout.strip() or "unknown"
