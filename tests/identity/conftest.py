"""Puts this folder on the path, so that the corpus is `import identity_corpus` for every test that shares it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
