"""What users ask about stores, runs and machines: tables, pictures and forecasts."""
