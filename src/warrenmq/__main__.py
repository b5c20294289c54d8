"""`python -m warrenmq` is the command `warren`."""

from warrenmq.cli import main

if __name__ == "__main__":
    main()
