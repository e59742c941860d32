"""`python -m engagement_platform.cli`, the same as `engagement-platform`."""

from engagement_platform.cli import main

if __name__ == "__main__":
    main()
