"""The protocol of controller, agents and ranks: lines, handshake, commands, events."""
