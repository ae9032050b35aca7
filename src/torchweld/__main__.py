"""`python -m torchweld`: the `torchweld` command."""

import sys

from torchweld.cli import main

sys.exit(main())
