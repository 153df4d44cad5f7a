import sys
from pathlib import Path

# Helpers of several tests (logged_runs.py) are imported as plain modules.
sys.path.insert(0, str(Path(__file__).parent))
