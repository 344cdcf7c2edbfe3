"""Every face of Muster: terminal, shell, HTTP. Screens and shell hold a Client, never an Engine."""
