"""The command ``zindex tokenize``: texts and conversations to token stores."""
