"""`python -m rawbpf.tools` is `rawbpf`."""

import sys

from .cli import main

sys.exit(main())
