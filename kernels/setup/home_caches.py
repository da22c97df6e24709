"""Runs a profile's code in a home folder of its own, and writes what that leaves there to an archive."""

import contextlib
import json
import os
import sys
import tarfile
import tempfile

boot = json.load(os.fdopen(int(sys.argv[1])))
home = tempfile.mkdtemp()
os.environ.update(HOME=home, TMPDIR=home)
os.chdir(home)
sys.path += boot["site_packages"]
with contextlib.suppress(ImportError):  # not installed: nothing needs its cache
    exec(boot["code"], {"__name__": "caches"})
with os.fdopen(boot["archive"], "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
    archive.add(home, ".")
os.system(f"rm -rf {home}")
