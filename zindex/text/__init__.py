"""From text and conversations to token ids: encoders, chat templates, loss masks."""
