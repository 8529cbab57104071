"""`python -m dfmodel`."""

import sys

from dfmodel.cli import main

sys.exit(main())
