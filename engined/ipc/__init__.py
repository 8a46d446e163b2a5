"""Frames over Unix stream sockets: the format, a blocking channel, an asyncio channel, and the socket paths."""
