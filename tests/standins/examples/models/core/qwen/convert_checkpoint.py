"""The stand-in of the qwen family's script; see checkpoint_programs.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[6]))

from tests.standins import checkpoint_programs

checkpoint_programs.convert_checkpoint("qwen")
