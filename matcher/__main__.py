"""`python -m matcher`: the same command where its folder is not on the path."""

from matcher.cli import main

if __name__ == "__main__":
    main()
