"""A Triton backend named "cpu" that compiles nothing: kernels run in Triton's interpreter.

vLLM's V2 model runner wants Triton, and on a CPU it asks for a backend of this name only. The
package is copied to a temporary folder and found there by its entry points; see ``backend.py``.
"""
