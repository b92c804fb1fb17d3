"""From texts and conversations to token ids: encoders, chat templates, loss masks."""
