#!/usr/bin/env python3
"""Runs the public harness with Tidegate among its systems: benches/README.md has the steps. The first argument is the folder of the
harness, the second the built runner; the others are the harness's own."""

import sys
from pathlib import Path

folder, program, *words = sys.argv[1:]
sys.path.insert(0, folder)
sys.argv[1:] = words

from bench_harness import adapters  # noqa: E402
from bench_harness.orchestrator import main  # noqa: E402


def launch(manifest, settings):
    return adapters.LaunchSpec(argv=[program], env=adapters._base_env(manifest, settings))


adapters.ADAPTERS["tidegate"] = adapters.AdapterEntry(bench_dir=Path(__file__).parent, builder=lambda skip: None, launcher=launch)
sys.exit(main())
