"""The command ``zindex prepare``: all that a Megatron command line will ask for, built ahead."""
