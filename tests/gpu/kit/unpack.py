"""On the machine with the GPU: unpack what was carried there, under /tmp, where later runs find it again.

    python3 .gpu/kit/unpack.py        # prints, as shell assignments, what there is

`site.tar.xz` goes to /tmp/gpu/site, with the folders site-packages and qwen. Parts of vLLM are copied to /tmp/gpu/parts
until all are there; then they are joined, checked and unpacked to /tmp/gpu/vllm/site-packages. Both folders have to be
called site-packages: repl_rl shows folders of that name to its sessions.
"""

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

GPU = Path(os.environ.get("GPU_HOME", "/tmp/gpu"))
CARRIED = Path(__file__).resolve().parents[1]


def unpack(source: object, target: Path) -> None:
    """Unpack a tar.xz; the folder appears when it is whole, with bytecode."""
    began = time.time()
    made = target.with_name(target.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    with lzma.open(source) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        tar.extractall(made, filter="fully_trusted")
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)
    workers = str(len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "compileall", "-q", "-j", workers, str(target / "site-packages")]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    print(f"echo 'unpacked {target} in {time.time() - began:.1f} s'")


def main() -> None:
    site, parts, vllm = GPU / "site", GPU / "parts", GPU / "vllm"
    archive = CARRIED / "site.tar.xz"
    if archive.is_file() and not site.is_dir():
        unpack(archive, site)
    parts.mkdir(parents=True, exist_ok=True)
    for part in sorted((CARRIED / "vllm").glob("part-[0-9][0-9]")):
        if not vllm.is_dir() and not (parts / part.name).is_file():
            shutil.copyfile(part, parts / f"{part.name}.new")
            (parts / f"{part.name}.new").rename(parts / part.name)
    facts = Path(__file__).with_name("part.json")
    if facts.is_file() and not vllm.is_dir():
        wanted = json.loads(facts.read_text(encoding="utf-8"))
        there = [parts / f"part-{number:02}" for number in range(wanted["parts"])]
        missing = [part.name for part in there if not part.is_file()]
        if missing:
            print(f"echo 'vLLM waits for {' '.join(missing)}'")
        else:
            whole = parts / "whole"
            digest = hashlib.sha256()
            with whole.open("wb") as joined:
                for part in there:
                    data = part.read_bytes()
                    digest.update(data)
                    joined.write(data)
            if digest.hexdigest() == wanted["sha256"]:
                unpack(whole, vllm)
            else:
                print("echo 'the parts of vLLM do not fit together: of several prepare runs?'")
            whole.unlink()
    found = [folder / "site-packages" for folder in (site, vllm) if folder.is_dir()]
    print(f"export GPU_HOME={GPU}")
    print("export PYTHONPATH=" + ":".join(map(str, [os.getcwd(), *found])))
    print(f"export GPU_HAS_VLLM={int(vllm.is_dir())} GPU_QWEN={site / 'qwen'}")


if __name__ == "__main__":
    main()
