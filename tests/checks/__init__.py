"""What ``manage.py check`` says about locks."""
