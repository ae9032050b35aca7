"""Program -> Executable: the only package that compiles or runs device code."""
