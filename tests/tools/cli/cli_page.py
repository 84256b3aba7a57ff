"""The script that writes the page about the command line, as a module."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SPEC = spec_from_file_location("cli_page", Path(__file__).parent.parent.parent.parent / "scripts" / "cli_page.py")
module = sys.modules["cli_page"] = module_from_spec(SPEC)
SPEC.loader.exec_module(module)
cli_page, leaves = module.cli_page, module.leaves
