"""The only package that imports torch: records what a training script does.

May import `record` and `errors`. Everything that touches torch's inner workings lives in `capture.taps`.
"""
