"""The entry of the command line, light enough that Ctrl-C is answered in one line from the first moment on."""

import sys


def main() -> None:
    """Load the commands and run one."""
    try:
        from fedflux.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("fedflux: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":  # workers import this module again
    main()
