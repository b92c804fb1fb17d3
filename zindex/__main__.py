"""``python -m zindex`` runs the command ``zindex``, for launchers that start modules."""

from zindex.cli import main

if __name__ == "__main__":
    main(prog_name="zindex")
