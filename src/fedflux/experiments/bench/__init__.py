"""Engine speed here, side by side: our engines, the loop that research code writes, and peers."""
