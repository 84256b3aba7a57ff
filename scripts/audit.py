"""
Look for known vulnerabilities in the packages of `requirements/*.txt`, by pip-audit and the advisories of PyPI.

python scripts/audit.py             exit 1 if there are any; where PyPI's advisories are out of reach, say so and exit 0
python scripts/audit.py --require   then exit 2: for workflows

`ACCEPTED` has advisories that do not concern us, with the reason.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED: dict[str, str] = {}
"""Advisory → why it is no danger here; pip-audit ignores it."""


def findings(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each vulnerability of a report of pip-audit."""
    return [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {' '.join(found['fix_versions']) or 'none'}"
        for package in report["dependencies"]
        for found in package.get("vulns", ())
    ]


def unread(report: Mapping[str, Any]) -> list[str]:
    """Return the packages without advisories: pip-audit skips what the index does not know, and reports success."""
    return [package["name"] for package in report["dependencies"] if "skip_reason" in package]


def audit(tool: Path, lock: Path) -> dict[str, Any] | None:
    """Return the report of one lock; None if the service did not answer."""
    ignored = [part for advisory in ACCEPTED for part in ("--ignore-vuln", advisory)]
    command = [
        tool,
        "--requirement",
        lock,
        "--require-hashes",
        "--disable-pip",
        "--format=json",
        "--progress-spinner=off",
    ]
    done = subprocess.run([*command, *ignored], stdout=subprocess.PIPE, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities in requirements/*.txt.")
    parser.add_argument("--require", action="store_true", help="fail if advisories cannot be read")
    parser.add_argument("names", nargs="*", metavar="NAME", help="locks, such as image (default: all)")
    options = parser.parse_args()
    made = subprocess.run([ROOT / "scripts" / "environment", "supply"], check=True, stdout=subprocess.PIPE, text=True)
    tool = Path(made.stdout.strip()).parent / "pip-audit"
    code = 0
    for name in options.names or sorted(path.stem for path in (ROOT / "requirements").glob("*.txt")):
        report = audit(tool, ROOT / "requirements" / f"{name}.txt")
        missing = ["all packages"] if report is None else unread(report)
        found = [] if report is None else findings(report)
        print(f"{name}: {len(found)} known vulnerabilities", *found, sep="\n  ")
        if missing:
            print(f"  not audited, the advisories cannot be read: {', '.join(missing)}", file=sys.stderr)
        code = 1 if found else code or (2 if missing and options.require else 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
