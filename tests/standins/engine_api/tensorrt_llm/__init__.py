"""A stand-in for the part of tensorrt_llm 1.1 that builds engines through the LLM API.

Names come from the contract data; an unknown argument is a ValueError that names it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
