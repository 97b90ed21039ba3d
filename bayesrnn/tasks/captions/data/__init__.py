"""Images with captions: folders in the format of MSCOCO, and drawn scenes that need no download."""
