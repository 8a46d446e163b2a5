"""Every message that crosses a process, and its codec. Pure data: no torch, no IO."""
