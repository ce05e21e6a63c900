"""What is inside `scripted:noisy`: the policy, and the parts that it plays."""
