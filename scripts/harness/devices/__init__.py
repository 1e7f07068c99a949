"""Where jobs run: phones behind adb, machines over ssh, this one, and the app on a JVM."""
