"""What a check judges and says: measurements, evidence, findings, statistics. Pure."""
