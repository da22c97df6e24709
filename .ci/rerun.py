"""A plugin of pytest: each test that failed runs once more, alone, and `flaky: NAME` tells of those that then pass.

If all of them do, the run is a success. None is run again if more failed than chance explains, or if pytest itself did.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST = 20


class Rerun:
    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.TESTS_FAILED and 0 < len(self.failed) <= MOST:
            self.flaky = [name for name in self.failed if passes_alone(name)]
            if len(self.flaky) == len(self.failed):
                session.exitstatus = pytest.ExitCode.OK

    def pytest_unconfigure(self) -> None:
        for name in self.flaky:
            print(f"flaky: {name}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rerun())


def passes_alone(name: str) -> bool:
    print(f"\nonce more, alone: {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0
