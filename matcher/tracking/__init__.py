"""Points that keep their identity over the frames of a camera or a video."""
