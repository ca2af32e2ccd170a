"""Conversations: messages, and the templates that write them as one text. Imports no torch."""
